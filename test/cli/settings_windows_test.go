package cli

// unusableSettings lists settings that would keep a service from starting, and a part of each error.
var unusableSettings = []struct{ key, value, wantText string }{
	{"run_as", "submitter", "password"},
	{"run_as", "fixed:nosuchuser", "password"},
}
