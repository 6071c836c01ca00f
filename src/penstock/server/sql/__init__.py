"""SQL about feeds: texts become statements, and statements the verbs of the one handler."""
