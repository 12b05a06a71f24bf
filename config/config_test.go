package config_test

import (
	"errors"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/queue"
)

func layer(origin config.Origin, pairs ...string) config.Layer {
	l := config.Layer{Origin: origin, Values: map[string]string{}}
	for i := 0; i < len(pairs); i += 2 {
		l.Values[pairs[i]] = pairs[i+1]
	}
	return l
}

// Every default is valid and is shown as a text that means the same.
func TestDefaultsAreValid(t *testing.T) {
	c, err := config.Merge()
	if err != nil {
		t.Fatal(err)
	}
	shown := config.Layer{Origin: config.FromFlag, Values: map[string]string{}}
	for i := range config.Keys {
		k := &config.Keys[i]
		if err := k.Check(k.Default); err != nil {
			t.Errorf("%s: %v", k.Name, err)
		}
		if k.Doc == "" || c.Origin(k.Name) != config.FromDefault {
			t.Errorf("%s: has no words, or comes from %s", k.Name, c.Origin(k.Name))
		}
		shown.Values[k.Name] = k.Show(&c.Settings)
	}
	again, err := config.Merge(shown)
	if err != nil || again.Settings != c.Settings {
		t.Errorf("got %+v, %v, want %+v", again.Settings, err, c.Settings)
	}
}

// Each setting refuses what it cannot be, by its name.
func TestSettingsRefuseByName(t *testing.T) {
	for i := range config.Keys {
		k := &config.Keys[i]
		for _, bad := range []string{"", "-1e9", "\x00", "NaN"} {
			if (k.Name == "shell" || bad == "NaN" && (k.Name == "socket_group" || strings.HasPrefix(k.Name, "access."))) && bad != "" && bad != "\x00" {
				continue // the name of a program, of a group or of a user
			}
			var e *queue.Error
			if err := k.Check(bad); !errors.As(err, &e) || e.Code != queue.CodeInvalid || e.Field != k.Name {
				t.Errorf("%s = %q: got %v, want invalid %s", k.Name, bad, err, k.Name)
			}
		}
	}
}

// The other spellings of a setting mean what they always did.
func TestSpellings(t *testing.T) {
	for _, c := range [][4]string{
		{"max_concurrent_jobs", "3", "workers", "3"}, {"default_max_tries", "4", "max_retries", "3"}, {"job_timeout", "1500", "timeout", "1.5"},
		{"job-timeout", "90s", "timeout", "90s"}, {"Kill-After", "1s", "kill_after", "1s"}, {"job_timeout", "", "timeout", ""},
	} {
		k, text, err := config.Find(c[0], c[1])
		if err != nil || k.Name != c[2] || text != c[3] {
			t.Errorf("%s = %s: got %v %q, %v, want %s = %s", c[0], c[1], k, text, err, c[2], c[3])
		}
	}
	if _, _, err := config.Find("default_max_tries", "0"); err == nil {
		t.Error("no run at all was taken")
	}
	if _, _, err := config.Find("max_retrys", ""); err == nil || !strings.Contains(err.Error(), `"max_retries"`) {
		t.Errorf("got %v, want it to name max_retries", err)
	}
}

// A stronger origin wins, and what it hides is named.
func TestOriginsGoByStrength(t *testing.T) {
	layers := []config.Layer{
		layer(config.FromFile, "workers", "1", "max_retries", "1", "priority", "1"), layer(config.FromStored, "workers", "2", "max_retries", "2"),
		layer(config.FromEnv, "workers", "3"), layer(config.FromFlag, "workers", "4"),
	}
	c, err := config.Merge(layers...)
	if err != nil || c.Workers != 4 || c.MaxRetries != 2 || c.Priority != 1 {
		t.Fatalf("got %d, %d, %d, %v", c.Workers, c.MaxRetries, c.Priority, err)
	}
	if got := []config.Origin{c.Origin("workers"), c.Origin("max_retries"), c.Origin("priority"), c.Origin("jitter")}; !slices.Equal(got, []config.Origin{config.FromFlag, config.FromStored, config.FromFile, config.FromDefault}) {
		t.Errorf("got origins %v", got)
	}
	if got := c.Hides(config.FromFile); !slices.Equal(got, []string{"workers", "max_retries"}) {
		t.Errorf("of the file are hidden: %v", got)
	}
	if got := c.Hides(config.FromFlag); got != nil {
		t.Errorf("of the flags are hidden: %v", got)
	}
}

// Each fault of a file is named with the file and the line it stands on.
func TestFileFaultsNameTheirLine(t *testing.T) {
	for text, want := range map[string]string{
		"workers = 2\nworkrs = 3\n":                            "f:2: workrs: ",
		"workers = 2\nwork = 3\n":                              "f:2: work: ",
		"aging_interval = \"1s\"\naging = \"x\"\n":             "f:2: aging: ",
		"# jitter\n\n\"jitter\" = 2\n":                         "f:3: jitter: ",
		"workers = 1\nmax_concurrent_jobs = 2\n":               "given twice",
		"workers = 1\nworkers = 2\n":                           "f:2: ",
		"priority = \n":                                        "f:1: ",
		"timeout = [1]\n":                                      "f:1: timeout: ",
		"[web]\nlisten = \"x\"\n":                              "f:1: web: ",
		"read = 1\n[access]\nread = []\n\"sbmit\" = [\"a\"]\n": "f:4: access.sbmit: is not a setting; did you mean \"access.submit\"?",
		"[access]\n# x\nsubmit = [\"a b\"]\n":                  "f:3: access.submit: ",
		"[ access ]\nadmin = [\"a\", \"a\"]\n":                 "f:2: access.admin: ",
		"[access]\nread = [true]\n":                            "f:2: access.read: ",
		"[access]\nread = [\"none\", \"a\"]\n":                 "f:2: access.read: ",
		"[access]\nread = \"\"\n":                              "f:2: access.read: ",
		"[access]\nread = [\"@\"]\n":                           "f:2: access.read: ",
		"[access]\nread = [\"auto\"]\n":                        "f:2: access.read: ",
		"\naccess.operate = [[1]]\n":                           "f:2: access.operate: ",
		"\naccess = {submit = [\"-x\"]}\n":                     "f:2: access.submit: ",
		"workers = [\"1\"]\n":                                  "f:1: workers: ",
		"access = 3\n":                                         "f:1: access: ",
		"run_as = \"fixed:\"\n":                                "f:1: run_as: ",
		"run_as = \"root\"\n":                                  "f:1: run_as: ",
		"socket_mode = 432\n":                                  "f:1: socket_mode: ",
		"socket_mode = \"0066\"\n":                             "f:1: socket_mode: ",
		strings.Repeat("#", 1<<20) + "\nworkers = 1":           "larger",
	} {
		_, err := config.ParseFile("f", []byte(text))
		if !errors.Is(err, queue.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: got %v, want %q", text, err, want)
		}
	}
	if _, err := config.ParseFile("f", []byte("a = 1\nb = 2\n")); err == nil || !strings.Contains(err.Error(), "f:1: a") || !strings.Contains(err.Error(), "f:2: b") {
		t.Errorf("got %v, want both lines", err)
	}
}

// The example lists every setting and means exactly the defaults.
func TestExampleIsTheDefaults(t *testing.T) {
	l, err := config.ReadFile("../queuectl.toml.example", true)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := slices.Sorted(maps.Keys(l.Values)), slices.Sorted(slices.Values(config.Names())); !slices.Equal(got, want) {
		t.Errorf("got keys %v\nwant %v", got, want)
	}
	delete(l.Values, "shell") // the example has that of Unix
	got, err := config.Merge(l)
	want, _ := config.Merge()
	if err != nil || !reflect.DeepEqual(got.Settings, want.Settings) {
		t.Errorf("got %+v, %v\nwant %+v", got.Settings, err, want.Settings)
	}
}

// [access] is lists of names or one text, of which the environment and a stored one
// have the words; who is not listed there is in the default groups, unless the service
// is one user's own.
func TestAccessIsLists(t *testing.T) {
	file, err := config.ParseFile("f", []byte("run_as = \"submitter\"\nsocket_mode = \"0660\"\nsocket_group = \"staff\"\n[access]\nread = [\"alice\", \"@1005\",\n  1001]\nsubmit = []\noperate = \"bob  @ops\"\n"))
	if err != nil {
		t.Fatal(err)
	}
	env, err := config.ReadEnv([]string{"QUEUECTL_ACCESS_SUBMIT=carol"})
	if err != nil {
		t.Fatal(err)
	}
	given, _ := config.Merge(file)
	hidden, _ := config.Merge(file, env)
	shared, _ := config.Merge(layer(config.FromFile, "run_as", "fixed:jobs"))
	own, _ := config.Merge()
	for _, c := range []struct {
		of    config.Config
		right string
		want  []string
	}{
		{given, "read", []string{"alice", "@1005", "1001"}}, {given, "submit", nil}, {given, "operate", []string{"bob", "@ops"}}, {given, "admin", []string{"@queuectl-admin"}},
		{hidden, "submit", []string{"carol"}},
		{shared, "read", nil}, {shared, "submit", []string{"@queuectl"}}, {shared, "operate", nil}, {shared, "admin", []string{"@queuectl-admin"}},
		{own, "submit", nil}, {own, "admin", nil},
	} {
		if got := c.of.Access(c.right); !slices.Equal(got, c.want) {
			t.Errorf("%s by %s: got %q, want %q", c.right, c.of.RunAs, got, c.want)
		}
	}
	if mode, group := given.Socket(); mode != 0o660 || group != "staff" {
		t.Errorf("the socket: %o %q", mode, group)
	}
	if mode, group := own.Socket(); mode != 0o600 || group != "" {
		t.Errorf("a socket of one's own: %o %q", mode, group)
	}
	if shared.FixedUser() != "jobs" || given.FixedUser() != "" || own.FixedUser() != "" {
		t.Error("the fixed user is not the one that is named")
	}
}

// What holds from the start is not changed by what is set later; all else is.
func TestSomeSettingsHoldFromTheStart(t *testing.T) {
	old, _ := config.Merge()
	c, err := config.Merge(layer(config.FromStored, "run_as", "submitter", "socket_mode", "0666", "socket_group", "wheel", "priority", "7"))
	if err != nil {
		t.Fatal(err)
	}
	c.Hold(&old.Settings)
	want := old.Settings
	want.Priority = 7
	if c.Settings != want {
		t.Errorf("got %+v, want %+v", c.Settings, want)
	}
}

// A missing file is empty unless it is required.
func TestMissingFile(t *testing.T) {
	if l, err := config.ReadFile(t.TempDir()+"/none", false); err != nil || len(l.Values) != 0 {
		t.Errorf("got %v, %v", l, err)
	}
	if _, err := config.ReadFile(t.TempDir()+"/none", true); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v, want %v", err, os.ErrNotExist)
	}
}

// The environment gives settings by their names in capitals and nothing else.
func TestEnvironment(t *testing.T) {
	l, err := config.ReadEnv([]string{"QUEUECTL_WORKERS=7", "QUEUECTL_JOB_TIMEOUT=1500", "QUEUECTL_SOCKET=/x", "WORKERS=9", "odd"})
	if want := map[string]string{"workers": "7", "timeout": "1.5"}; err != nil || !maps.Equal(l.Values, want) {
		t.Errorf("got %v, %v, want %v", l.Values, err, want)
	}
	for _, bad := range []string{"QUEUECTL_WORKERS=x", "QUEUECTL_DEFAULT_MAX_TRIES=0", "QUEUECTL_WORKERS="} {
		name, _, _ := strings.Cut(bad, "=")
		if _, err := config.ReadEnv([]string{bad}); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: got %v, want it named", bad, err)
		}
	}
}

// No file makes reading panic; what is read is valid.
func FuzzFile(f *testing.F) {
	for _, seed := range []string{"workers = 2\n", "timeout = 1.5", "a = 1", "[x]\ny=1", "\"jitter\" = true", "job_timeout = 9", "shell = '''\nx'''", config.Example()} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		l, err := config.ParseFile("f", raw)
		if err != nil {
			return
		}
		if _, err := config.Merge(l); err != nil {
			t.Fatalf("%q was read as %v: %v", raw, l.Values, err)
		}
	})
}
