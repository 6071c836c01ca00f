"""Tables of the source: columns, versions, and which version a table map speaks of."""
