package cli

// testBinaryRoles is empty on Windows, because these tests do not start the test binary as a helper process there.
var testBinaryRoles map[string]func() int
