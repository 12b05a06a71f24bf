package tomlfile_test

import (
	"errors"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/config/tomlfile"
	"github.com/queuectl/queuectl/queue"
)

// Each error about the content of a settings file contains the name of the file and the line number.
func TestSettingsFileErrorsNameTheirLine(t *testing.T) {
	for text, want := range map[string]string{
		"workers = 2\nworkrs = 3\n":                "f:2: workrs: ",
		"workers = 2\nwork = 3\n":                  "f:2: work: ",
		"aging_interval = \"1s\"\naging = \"x\"\n": "f:2: aging: ",
		"# jitter\n\n\"jitter\" = 2\n":             "f:3: jitter: ",
		"workers = 1\nmax_concurrent_jobs = 2\n":   "given twice, under two names",
		"workers = 1\nworkers = 2\n":               "f:2: ",
		"priority = \n":                            "f:1: ",
		"\n[resources.gpu\ncount = 2\n":            "f:2: expected '.' or ']' to end table name",
		"\n[resources.gpu \ncount = 2\n":           "f:2: expected",
		"\n[resources.gpu":                         "f:2: expected '.' or ']' to end table name, but the file ends",
		"\n[web\n":                                 "f:2: expected",
		"\n[web.\n":                                "f:2: ",
		"\n[\nworkers = 2\n":                       "f:2: ",
		"\n[\"web\nlisten = 1":                     "f:2: ",
		"\n[[web]\nlisten = 1":                     "f:2: ",
		"\nworkers = +\nlisten = 1":                "f:2: ",
		"\nworkers = 1.\nlisten = 1":               "f:2: ",
		"\nworkers = 0x\nlisten = 1":               "f:2: ",
		"\nworkers\nlisten = 1":                    "f:2: ",
		"\nweb.\nlisten = 1":                       "f:2: ",
		"\nweb.x = {\nlisten = 1\n":                "f:",
		"\nshell = \"a\nlisten = 1":                "f:2: ",
		"\nshell = \"\\x\nlisten = 1":              "f:2: ",
		"\nshell = \"\"\"\na\\x\nlisten = \"\"\"":  "f:3: ",
		"\nshell = tru\nlisten = 1":                "f:2: ",
		"timeout = [1]\n":                          "f:1: timeout: ",
		"[page]\nlisten = \"x\"\n":                 "f:1: page: ",
		"read = 1\n[access]\nread = []\n\"sbmit\" = [\"a\"]\n": "f:4: access.sbmit: unknown setting; did you " +
			"mean \"access.submit\"?",
		"[access]\n# x\nsubmit = [\"a b\"]\n":     "f:3: access.submit: ",
		"[ access ]\nadmin = [\"a\", \"a\"]\n":    "f:2: access.admin: ",
		"[access]\nread = [true]\n":               "f:2: access.read: ",
		"[access]\nread = [\"none\", \"a\"]\n":    "f:2: access.read: ",
		"[access]\nread = \"\"\n":                 "f:2: access.read: ",
		"[access]\nread = [\"@\"]\n":              "f:2: access.read: ",
		"[access]\nread = [\"auto\"]\n":           "f:2: access.read: ",
		"\naccess.operate = [[1]]\n":              "f:2: access.operate: ",
		"\naccess = {submit = [\"-x\"]}\n":        "f:2: access.submit: ",
		"\n\n[queues.a]\nlimit = 1\n":             "f:3: queues: ",
		"\nqueues.b.c = 1\nqueues.a.c = 1\n":      "f:2: queues: ",
		"workers = [\"1\"]\n":                     "f:1: workers: ",
		"access = 3\n":                            "f:1: access: ",
		"run_as = \"fixed:\"\n":                   "f:1: run_as: ",
		"run_as = \"root\"\n":                     "f:1: run_as: ",
		"socket_mode = 432\n":                     "f:1: socket_mode: ",
		"socket_mode = \"0066\"\n":                "f:1: socket_mode: ",
		"\n[resources.gpu]\ncount = 1\nfoo = 2\n": "f:4: resources.gpu.foo",
		"[resources.disk]\ncount = 1\n[resources.gpu]\nids = [\"a\"]\ncount = 2\n":                      "f:5: resources.gpu.count",
		"[webhooks.b]\n[webhooks.a]\nurl = \"http://x/\"\nsecret_file = \"/s\"\nurls = []\n":            "f:5: webhooks: a: urls is not",
		"[webhooks.b]\nurl = \"http://x/\"\nsecret_file = \"/s\"\n[webhooks.a]\nsecret_file = \"/s\"\n": "f:4: webhooks: a: url is missing",
		"[webhooks.b]\n[webhooks.a]\nurl = \"http://x/\"\n":                                             "f:2: webhooks: a: secret_file must",
		"\n[webhooks]\na = {url = \"http://x/\", secret_file = \"/s\", no = 1}\n":                       "f:3: webhooks: a: no is not",
		strings.Repeat("#", 1<<20) + "\nworkers = 1":                                                    "larger",
	} {
		_, err := tomlfile.Parse("f", []byte(text))
		if !errors.Is(err, queue.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: got %v, want %q", text, err, want)
		}
	}
	if _, err := tomlfile.Parse("f", []byte("a = 1\nb = 2\n")); err == nil || !strings.Contains(err.Error(), "f:1: a") ||
		!strings.Contains(err.Error(), "f:2: b") {
		t.Errorf("got %v, want both lines", err)
	}
}

// The example settings file lists every setting, with its default.
func TestExampleSettingsFileEqualsDefaults(t *testing.T) {
	l, err := tomlfile.Read("../../queuectl.toml.example", true)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := slices.Sorted(maps.Keys(l.ValuesBySetting)),
		slices.Sorted(slices.Values(config.SettingNames())); !slices.Equal(got, want) {
		t.Errorf("got keys %v\nwant %v", got, want)
	}
	delete(l.ValuesBySetting, "shell") // the example contains the default shell of Unix, which differs on Windows
	got, err := config.Merge(l)
	want, _ := config.Merge()
	if err != nil || !reflect.DeepEqual(got.Settings, want.Settings) {
		t.Errorf("got %+v, %v\nwant %+v", got.Settings, err, want.Settings)
	}
}

// In a settings file, the values in the table "access" may be lists of names. In the environment and in flags, such a
// list is text. The default groups have rights only if run_as is not "service".
func TestAccessTableAcceptsNameLists(t *testing.T) {
	file, err := tomlfile.Parse("f", []byte("run_as = \"submitter\"\nsocket_mode = \"0660\"\nsocket_group = "+
		"\"staff\"\n[access]\nread = [\"alice\", \"@1005\",\n  1001]\nsubmit = []\noperate = \"bob  @ops\"\n"))
	if err != nil {
		t.Fatal(err)
	}
	env, err := config.ReadEnv([]string{"QUEUECTL_ACCESS_SUBMIT=carol"})
	if err != nil {
		t.Fatal(err)
	}
	given, _ := config.Merge(file)
	hidden, _ := config.Merge(file, env)
	shared, _ := config.Merge(config.Layer{Origin: config.FromFile,
		ValuesBySetting: map[string]string{"run_as": "fixed:jobs"}})
	own, _ := config.Merge()
	for _, c := range []struct {
		of    config.Config
		right string
		want  []string
	}{
		{given, "read", []string{"alice", "@1005", "1001"}}, {given, "submit", nil},
		{given, "operate", []string{"bob", "@ops"}}, {given, "admin", []string{"@queuectl-admin"}},
		{hidden, "submit", []string{"carol"}},
		{shared, "read", nil}, {shared, "submit", []string{"@queuectl"}}, {shared, "operate", nil},
		{shared, "admin", []string{"@queuectl-admin"}},
		{own, "submit", nil}, {own, "admin", nil},
	} {
		if got := c.of.AccountsWithRight(c.right); !slices.Equal(got, c.want) {
			t.Errorf("%s by %s: got %q, want %q", c.right, c.of.RunAs, got, c.want)
		}
	}
	if mode, group := given.SocketPermissions(); mode != 0o660 || group != "staff" {
		t.Errorf("the socket: %o %q", mode, group)
	}
	if mode, group := own.SocketPermissions(); mode != 0o600 || group != "" {
		t.Errorf("the socket of a user's own service: %o %q", mode, group)
	}
	if shared.FixedJobUser() != "jobs" || given.FixedJobUser() != "" || own.FixedJobUser() != "" {
		t.Error("FixedUser does not return the configured user")
	}
}

// A missing settings file has the same effect as an empty one, unless the file is required.
func TestMissingSettingsFileEqualsEmptyFile(t *testing.T) {
	if l, err := tomlfile.Read(t.TempDir()+"/none", false); err != nil || len(l.ValuesBySetting) != 0 {
		t.Errorf("got %v, %v", l, err)
	}
	if _, err := tomlfile.Read(t.TempDir()+"/none", true); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v, want %v", err, os.ErrNotExist)
	}
}

// Parse never panics, and it accepts only valid settings.
func FuzzFile(f *testing.F) {
	for _, seed := range []string{"workers = 2\n", "timeout = 1.5", "a = 1", "[x]\ny=1", "\"jitter\" = true",
		"job_timeout = 9", "shell = '''\nx'''", config.Example()} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		l, err := tomlfile.Parse("f", raw)
		if err != nil {
			return
		}
		if _, err := config.Merge(l); err != nil {
			t.Fatalf("%q was read as %v: %v", raw, l.ValuesBySetting, err)
		}
	})
}
