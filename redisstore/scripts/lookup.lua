-- The record; 0 if there is none.
return row() or 0
