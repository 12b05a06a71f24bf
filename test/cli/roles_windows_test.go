package cli

// roles is empty, because these tests start no helper processes on Windows.
var roles map[string]func() int
