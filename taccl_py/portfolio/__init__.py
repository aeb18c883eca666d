"""Portfolio: for every size of a range the fastest algorithm that was found, as files with disjoint size ranges."""
