package access

// roles is empty on Windows, because these tests start no helper processes there.
var roles map[string]func() int
