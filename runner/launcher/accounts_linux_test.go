package launcher

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/queuectl/queuectl/internal/accounts"
)

// Looking up an account or its groups may get no answer. Then the jobs of this account wait until a look-up gets an
// answer. They neither fail, nor run without some of their groups.
func TestHungAccountLookupDelaysJobs(t *testing.T) {
	silent := errors.New("silent")
	answers := map[string]string{"passwd 61400": "dora:*:61400:61410::/home/dora:/bin/zsh",
		"initgroups dora": "dora 61410 61411", "passwd 61401": ""}
	a := &AccountAuthorizer{PolicyFile: filepath.Join(t.TempDir(), "runner.conf"),
		AccountResolver: &accounts.Resolver{AlwaysQueryRemote: true, GetentFunc: func(database, key string) (string, error) {
			line, ok := answers[database+" "+key]
			if !ok {
				return "", silent
			}
			return line, nil
		}}}
	checkError := func(what string, uid uint32, final bool) {
		t.Helper()
		if known, err := a.AllowedAccountByUID(uid); err == nil || IsPermanentError(err) != final {
			t.Errorf("%s: got account %+v, error %v", what, known, err)
		}
	}
	checkError("no policy", 61400, true)
	checkError("no account", 61401, true)
	checkError("no answer about the account", 61402, false)
	delete(answers, "initgroups dora")
	a.AccountResolver = &accounts.Resolver{AlwaysQueryRemote: true, GetentFunc: a.AccountResolver.GetentFunc}
	checkError("no answer about groups", 61400, false)
	answers["initgroups dora"] = "dora 61410 61411"
	checkError("after the groups are known", 61400, true)
}

// The policy file is read again only after it has changed. A change of its mode also counts, because a policy file that
// accounts other than root can change must be rejected.
func TestPolicyFileIsRereadOnlyAfterChange(t *testing.T) {
	path := filepath.Join(t.TempDir(), "runner.conf")
	a := &AccountAuthorizer{PolicyFile: path}
	checkCached := func(what string) {
		t.Helper()
		first, err := a.currentPolicy()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if again, err := a.currentPolicy(); err != nil || again != first {
			t.Errorf("%s: unchanged, but read again: got %p, want %p, error %v", what, again, first, err)
		}
	}
	checkCached("a missing file")
	if err := os.WriteFile(path, []byte("accounts = *\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 { // a file of another owner is always refused
		checkCached("a new file")
	}
	// A file system may store the change time of a file with a resolution of some milliseconds, so one chmod may leave it
	// unchanged.
	for start := time.Now(); ; {
		if err := os.Chmod(path, 0o666); err != nil {
			t.Fatal(err)
		}
		p, err := a.currentPolicy()
		if err != nil {
			break
		}
		if time.Since(start) > 10*time.Second {
			t.Fatalf("a file that everyone can change: got %+v, want an error", p)
		}
	}
}

// A policy file that an account other than root owns or can change is rejected. The part that needs a file of
// root runs only as root.
func TestPolicyFileMustBelongToRoot(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "runner.conf")
	if err := os.WriteFile(path, []byte("accounts = *\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	checkRefused := func(what, path string) {
		t.Helper()
		if p, err := readPolicy(path); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: got %+v, %v, want it refused by name", what, p, err)
		}
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	checkRefused("a link", link)
	checkRefused("a directory", dir)
	if err := os.Chmod(path, 0o664); err != nil {
		t.Fatal(err)
	}
	checkRefused("a file that its group can change", path)
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() != 0 {
		checkRefused("a file of another owner", path)
		return
	}
	if p, err := readPolicy(path); err != nil || len(p.allowedAccounts) != 1 {
		t.Errorf("root's own: got %+v, %v", p, err)
	}
	if err := os.Chown(path, 1, 0); err != nil {
		t.Fatal(err)
	}
	checkRefused("a file of another owner", path)
}
