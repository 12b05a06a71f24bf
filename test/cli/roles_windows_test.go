package cli

// roles is empty on Windows, because these tests do not start the test binary as a helper process there.
var roles map[string]func() int
