package test

// unusable are settings with which a service would not start, and why.
var unusable = []struct{ key, value, why string }{
	{"run_as", "submitter", "password"},
	{"run_as", "fixed:nosuchuser", "password"},
}
