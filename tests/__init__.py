"""The test suite. Names of tests are sentences; what a test cannot do without it says with `needs`."""
