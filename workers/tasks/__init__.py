"""Tasks are doors: decode ids, call one function, send what follows."""
