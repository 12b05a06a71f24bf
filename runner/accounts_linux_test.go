package runner

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// Accounts and groups are those of passwd(5) and group(5): the first of several lines
// counts, a group comes once, damaged lines are passed over.
func TestAccountsAreRead(t *testing.T) {
	users, groups := parseAccounts(
		"root:x:0:0:root:/root:/bin/bash\nalice:x:1000:1000:Alice,,,:/home/alice:/bin/zsh\nbad:x:no:1:::\nfew:x:1\n+::::::\nsvc:x:998:50::: \n",
		"root:x:0:\nqueuectl:x:50:alice,www-data\nalice:x:1000:alice\ndisk:x:6:bob,alice\nqueuectl:x:51:\n")
	want := []account{
		{name: "root", home: "/root", shell: "/bin/bash", groups: []uint32{0}},
		{name: "alice", uid: 1000, gid: 1000, home: "/home/alice", shell: "/bin/zsh", groups: []uint32{1000, 50, 6}},
		{name: "svc", uid: 998, gid: 50, home: "/", shell: " ", groups: []uint32{50}},
	}
	if !reflect.DeepEqual(users, want) {
		t.Errorf("got %+v\nwant %+v", users, want)
	}
	if groups["queuectl"] != 50 || groups["disk"] != 6 {
		t.Errorf("got groups %v", groups)
	}
}

// A policy that others than root could have written counts as none at all. Needs root to
// make the one that counts.
func TestPolicyIsRoots(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "runner.conf")
	if err := os.WriteFile(path, []byte("accounts = *\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	refused := func(what, path string) {
		t.Helper()
		if p, err := readPolicy(path); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: got %+v, %v, want it refused by name", what, p, err)
		}
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	refused("a link", link)
	refused("a folder", dir)
	if err := os.Chmod(path, 0o664); err != nil {
		t.Fatal(err)
	}
	refused("one that its group can change", path)
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() != 0 {
		refused("one of another owner", path)
		return
	}
	if p, err := readPolicy(path); err != nil || len(p.accounts) != 1 {
		t.Errorf("root's own: got %+v, %v", p, err)
	}
	if err := os.Chown(path, 1, 0); err != nil {
		t.Fatal(err)
	}
	refused("one of another owner", path)
}
