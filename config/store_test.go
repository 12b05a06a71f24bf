package config

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// At most one of the settings store and store_file may be set. No error contains the URL of a store, because the
// URL may contain a password.
func TestStoreURLComesFromOneSetting(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "store")
	if err := os.WriteFile(file, []byte("postgres://u:secret@h/d\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	bad := filepath.Join(dir, "bad")
	if err := os.WriteFile(bad, []byte("mysql://u:secret@h/d\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("CREDENTIALS_DIRECTORY", dir)
	for _, c := range []struct{ store, file, want, fault string }{
		{"", "", "", ""},
		{"postgres://u@h/d", "", "postgres://u@h/d", ""},
		{"", file, "postgres://u:secret@h/d", ""},
		{"", "credential:store", "postgres://u:secret@h/d", ""},
		{"", "credential:none", "", "store_file: the file with the database URL cannot be read"},
		{"", bad, "", "must be sqlite or a URL"},
		{"postgres://u@h/d", file, "", "remove one of the two"},
		{"postgres://u:secret@h", "", "", "must name a database"},
		{"mysql://u:secret@h/d", "", "", "must be sqlite or a URL"},
		{"postgres://u@h/d#?password=secret", "", "", "write it as %23"},
		{"", "store", "", "is neither an absolute path nor credential:NAME"},
	} {
		values := map[string]string{}
		if c.store != "" {
			values["store"] = c.store
		}
		if c.file != "" {
			values["store_file"] = c.file
		}
		set, err := Merge(Layer{Origin: FromFile, ValuesBySetting: values})
		got := ""
		if err == nil {
			got, err = set.StoreURL()
		}
		if got != c.want || (err != nil) != (c.fault != "") || err != nil &&
			(!strings.Contains(err.Error(), c.fault) || strings.Contains(err.Error(), "secret")) {
			t.Errorf("store %q, store_file %q: %q, %v; want %q, %q", c.store, c.file, got, err, c.want, c.fault)
		}
	}
}

// The setting store_roles maps each role to exactly one user.
func TestEachStoreRoleHasOneUser(t *testing.T) {
	for text, want := range map[string]map[string]string{
		"none": {}, "shop=alice": {"shop": "alice"}, " shop=alice  b-1=bob ": {"shop": "alice", "b-1": "bob"},
		"shop": nil, "shop=": nil, "=alice": nil, "a=x a=y": nil, "": nil, strings.Repeat("a", 64) + "=x": nil,
	} {
		set, err := Merge(Layer{Origin: FromFile, ValuesBySetting: map[string]string{"store_roles": text}})
		if (err == nil) != (want != nil) || err == nil && !maps.Equal(set.UsersByStoreRole(), want) {
			t.Errorf("%q: %v, %v", text, set.UsersByStoreRole(), err)
		}
	}
}
