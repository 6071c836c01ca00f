"""A reader of storage targets that was written from `docs/storage-layout.md` and from nothing else.

It owns the proof that the document is enough: it imports the standard library only, and nothing of Penstock. Where it had to know
something that the document did not say, the document was mended first. It runs in tests, on a folder of this machine.
"""
