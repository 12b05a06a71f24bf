package access

var roles map[string]func() int
