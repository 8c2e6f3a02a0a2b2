"""A strategy to read and to copy: eight steps, one small module each, named in order by `pair.py`."""
