"""What requests may hold, as pydantic models; a field is used, refused by name, or harmless."""
