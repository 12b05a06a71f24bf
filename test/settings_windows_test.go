package test

// unusable lists settings that would keep a service from starting, and a part of each error.
var unusable = []struct{ key, value, why string }{
	{"run_as", "submitter", "password"},
	{"run_as", "fixed:nosuchuser", "password"},
}
