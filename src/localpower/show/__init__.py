"""Results for people: text, tables, pictures and the page of a run."""
