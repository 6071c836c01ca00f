"""What happens inside one transaction of the meta database, whose beginning and end are the caller's."""
