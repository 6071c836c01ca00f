"""Tables of the source: catalog, versions, the DDLs that lie between them."""
