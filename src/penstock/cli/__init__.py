"""The command line: a room for the verbs of each subject, one file per verb, beside what they share."""
