package cli

var roles map[string]func() int
