"""What compiled code of every package shares: the decorator and its array types, memory, hashes, comparisons."""
