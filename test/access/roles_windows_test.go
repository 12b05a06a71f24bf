package access

// helperProcessMains is empty on Windows, because these tests do not start the test binary as a helper process there.
var helperProcessMains map[string]func() int
