package accounts

import (
	"errors"
	"os"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/queuectl/queuectl/internal/skip"
)

// If several groups have the same name or number, parseAccountFiles uses the first one. It lists each group of a user
// once, and ignores damaged lines.
func TestParseAccountFilesUsesFirstDuplicate(t *testing.T) {
	l := parseAccountFiles(
		"root:x:0:0:root:/root:/bin/bash\nalice:x:1000:1000:Alice,,,:/home/alice:/bin/zsh\n"+
			"bad:x:no:1:::\nfew:x:1\n+::::::\nsvc:x:998:50::: \n",
		"root:x:0:\nqueuectl:x:50:alice,www-data\nalice:x:1000:alice\ndisk:x:6:bob,alice\n"+
			"queuectl:x:51:\nagain:x:50:\nfew:x:7\n")
	want := &accountFiles{
		users: []Account{
			{Name: "root", HomeDir: "/root", Shell: "/bin/bash", Groups: []uint32{0}},
			{Name: "alice", UID: 1000, GID: 1000, HomeDir: "/home/alice", Shell: "/bin/zsh", Groups: []uint32{1000, 50, 6}},
			{Name: "svc", UID: 998, GID: 50, HomeDir: "/", Shell: " ", Groups: []uint32{50}},
		},
		gidsByName:      map[string]uint32{"root": 0, "queuectl": 50, "alice": 1000, "disk": 6, "again": 50},
		groupNamesByGID: map[uint32]string{0: "root", 50: "queuectl", 1000: "alice", 6: "disk", 51: "queuectl"},
	}
	if !reflect.DeepEqual(l, want) {
		t.Errorf("got %+v\nwant %+v", l, want)
	}
}

// While the files are unchanged, a lookup does not wait for another goroutine that is reading the files.
func TestUnchangedAccountFilesAreReadWithoutWaiting(t *testing.T) {
	d := new(Resolver)
	if _, err := d.UserByUID(0); err != nil {
		t.Fatal(err)
	}
	d.readFilesMu.Lock()
	defer d.readFilesMu.Unlock()
	found := make(chan error, 1)
	go func() { // this goroutine ends at the latest when the lock is released
		_, err := d.UserByUID(0)
		found <- err
	}()
	select {
	case err := <-found:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Error("a caller waits although the files have not changed")
	}
}

// fakeRemoteSources replaces the sources outside the files, such as LDAP. It records the queries.
type fakeRemoteSources struct {
	mu              sync.Mutex
	linesByQuery    map[string]string // lines of getent, by database and key, such as "passwd dora"
	recordedQueries []string
	lookupsTimeOut  bool          // whether every lookup returns errLookupTimeout
	lookupDelay     time.Duration // how long every lookup takes
}

func (e *fakeRemoteSources) lookup(database, key string) (string, error) {
	time.Sleep(e.lookupDelay)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.recordedQueries = append(e.recordedQueries, database+" "+key)
	if e.lookupsTimeOut {
		return "", errLookupTimeout
	}
	return e.linesByQuery[database+" "+key], nil
}

// newFakeRemoteSources returns remote sources that contain the user dora and the group staff@dir.
func newFakeRemoteSources() *fakeRemoteSources {
	return &fakeRemoteSources{linesByQuery: map[string]string{
		"passwd dora":     "dora:*:61400:61410:Dora:/home/dora:/bin/zsh",
		"passwd 61400":    "dora:*:61400:61410:Dora:/home/dora:/bin/zsh",
		"initgroups dora": "dora 61410 61411", "group staff@dir": "staff@dir:*:61411:dora",
		"group 61411":  "staff@dir:*:61411:dora",
		"passwd 61402": "other:*:61403:61403::/:/bin/sh", // the answer has another uid than the request
	}}
}

// Resolver finds accounts that are not in the files but in another source, such as LDAP. It finds them by name and by
// number, with all groups. It does not query the other sources for accounts that are in the files.
func TestResolverFindsRemoteAccounts(t *testing.T) {
	e := newFakeRemoteSources()
	d := &Resolver{GetentFunc: e.lookup}
	want := Account{Name: "dora", HomeDir: "/home/dora", Shell: "/bin/zsh", UID: 61400, GID: 61410}
	for how, look := range map[string]func() (Account, error){
		"by name":   func() (Account, error) { return d.UserByName("dora") },
		"by number": func() (Account, error) { return d.UserByUID(61400) },
	} {
		if got, err := look(); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %+v, %v", how, got, err)
		}
	}
	want.Groups = []uint32{61410, 61411}
	if got, err := d.WithGroups(Account{Name: "dora", HomeDir: "/home/dora", Shell: "/bin/zsh", UID: 61400,
		GID: 61410}); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("with groups: got %+v, %v", got, err)
	}
	if gid, ok := d.GroupID("staff@dir"); !ok || gid != 61411 || d.GroupName(61411) != "staff@dir" ||
		d.GroupName(61412) != "61412" {
		t.Errorf("the group: %d, %v, %s", gid, ok, d.GroupName(61411))
	}
	if _, err := d.UserByUID(61402); err == nil {
		t.Error("an answer of another number counts")
	}
	e.recordedQueries = nil
	if root, err := d.UserByUID(0); err != nil || d.UserName(0) != root.Name || root.Groups == nil ||
		len(e.recordedQueries) != 0 {
		t.Errorf("root: %+v, %v, asked for %q", root, err, e.recordedQueries)
	}
}

// A lookup by name finds no account if the name is a number, with or without a sign. Without this rule,
// getent would look up the account with that number.
func TestLookupByNameRejectsNumbers(t *testing.T) {
	e := &fakeRemoteSources{linesByQuery: map[string]string{"passwd 1001": "1001:*:61400:1::/:/bin/sh",
		"passwd +5": "games:*:5:60::/:/bin/sh", "group -1": "x:*:5:"}}
	d := &Resolver{GetentFunc: e.lookup}
	if id, ok := d.UserID("1001"); !ok || id != 1001 {
		t.Errorf("got %d, %v", id, ok)
	}
	for _, word := range []string{"", "-1", "+5", " 5", "4294967295", "99999999999"} {
		uid, ok := d.UserID(word)
		gid, is := d.GroupID(word)
		if ok || is {
			t.Errorf("%q is the user %d, %v, and the group %d, %v", word, uid, ok, gid, is)
		}
	}
	if len(e.recordedQueries) != 0 {
		t.Errorf("asked for %q", e.recordedQueries)
	}
}

// A result is cached for a minute, even the result that an account does not exist. Concurrent callers share
// one lookup.
func TestRemoteLookupsAreCachedForAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newFakeRemoteSources()
		e.lookupDelay = time.Second
		d := &Resolver{GetentFunc: e.lookup}
		for range 2 {
			var all sync.WaitGroup
			for range 5 {
				all.Go(func() { d.UserName(61400) })
				all.Go(func() { d.UserName(61401) })
			}
			all.Wait()
		}
		if len(e.recordedQueries) != 2 {
			t.Errorf("asked for %q", e.recordedQueries)
		}
		time.Sleep(lookupCacheTTL)
		if d.UserName(61400); len(e.recordedQueries) != 3 {
			t.Errorf("after a minute asked for %q", e.recordedQueries)
		}
	})
}

// After a lookup in the sources outside the files has timed out, further lookups in these sources fail immediately for
// a minute. With AlwaysQueryRemote, each lookup still queries the sources.
func TestLookupsFailFastAfterTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newFakeRemoteSources()
		d, patient := &Resolver{GetentFunc: e.lookup}, &Resolver{GetentFunc: e.lookup, AlwaysQueryRemote: true}
		d.UserName(61400)
		e.recordedQueries, e.lookupsTimeOut = nil, true
		for uid := 61420; uid < 61520; uid++ {
			if _, err := d.UserByUID(uint32(uid)); !errors.Is(err, errLookupTimeout) {
				t.Fatalf("got %v", err)
			}
		}
		if got := d.UserName(61400); got != "dora" || len(e.recordedQueries) != 1 {
			t.Errorf("it is known as %s; asked for %q", got, e.recordedQueries)
		}
		patient.UserName(61420)
		if patient.UserName(61421); len(e.recordedQueries) != 3 {
			t.Errorf("with AlwaysQueryRemote: asked for %q", e.recordedQueries)
		}
		time.Sleep(lookupCacheTTL)
		e.lookupsTimeOut = false
		if got := d.UserName(61400); got != "dora" || len(e.recordedQueries) != 4 {
			t.Errorf("after the directory answers again: %s, %q", got, e.recordedQueries)
		}
	})
}

// The real getent finds accounts that are in the files, and reports that other accounts do not exist.
func TestGetentFindsAccounts(t *testing.T) {
	if _, err := os.Stat("/usr/bin/getent"); err != nil {
		skip.MissingRequirement(t, "getent", "needs getent; the other tests of internal/accounts replace it")
	}
	for key, want := range map[string]string{"0": "root:", "root": "root:", "no.such.user": "", "-h": "", "a\x00b": ""} {
		if line, err := getent("passwd", key); err != nil || !strings.HasPrefix(line, want) || want == "" && line != "" {
			t.Errorf("%q: got %q, %v", key, line, err)
		}
	}
}
