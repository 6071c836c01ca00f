"""What benchmarks run on: changes, servers, peers, a slow target."""
