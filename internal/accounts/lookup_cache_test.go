//go:build linux || windows

package accounts

import (
	"errors"
	"testing"
)

// After a timeout, lookups of other names fail immediately. Other errors do not affect lookups of other names. Errors
// are not cached, so the next lookup of the same name queries the source again.
func TestOnlyTimeoutMakesLookupsFailFast(t *testing.T) {
	var c lookupCache[string]
	look := func(name string, failure error) error {
		_, err := c.getOrQuery(name, false, func() (string, error) { return name, failure })
		return err
	}
	broken := errors.New("cannot start getent")
	if err := look("dora", broken); !errors.Is(err, broken) {
		t.Errorf("a lookup that fails: got %v, want %v", err, broken)
	}
	for _, name := range []string{"dora", "emil"} {
		if err := look(name, nil); err != nil {
			t.Errorf("%s after an error: got %v, want an answer", name, err)
		}
	}
	if err := look("fred", errLookupTimeout); !errors.Is(err, errLookupTimeout) {
		t.Errorf("a lookup that times out: got %v, want %v", err, errLookupTimeout)
	}
	if err := look("gina", nil); !errors.Is(err, errLookupTimeout) {
		t.Errorf("a lookup after a timeout: got %v, want %v", err, errLookupTimeout)
	}
}
