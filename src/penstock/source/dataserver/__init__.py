"""The embedded range-sharded data server, its client and its workload."""
