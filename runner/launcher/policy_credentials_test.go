package launcher

import (
	"testing"

	"github.com/queuectl/queuectl/internal/accounts"
)

// An account gets a credential only if the policy lists the account for this credential, by name or by group. The
// credential name "all" has no special meaning: it does not allow other credentials.
func TestPolicyAllowsCredentialPerAccount(t *testing.T) {
	p, err := parsePolicy("f", "accounts = *\ncredential.db = ann @ops\ncredential.all = *\n")
	if err != nil {
		t.Fatal(err)
	}
	ops := func(name string) (uint32, bool) { return 50, name == "ops" }
	for _, c := range []struct {
		account    accounts.Account
		credential string
		allowed    bool
	}{
		{accounts.Account{Name: "ann", UID: 1}, "db", true}, {accounts.Account{Name: "bob", UID: 2}, "db", false},
		{accounts.Account{Name: "bob", UID: 2, GID: 50}, "db", true},
		{accounts.Account{Name: "bob", UID: 2, Groups: []uint32{7, 50}}, "db", true},
		{accounts.Account{Name: "ann", UID: 1}, "other", false},
		{accounts.Account{Name: "ann", UID: 1}, "all", false}, {accounts.Account{Name: "root"}, "db", false},
	} {
		if got := p.allowsCredential(c.credential, &c.account, ops); got != c.allowed {
			t.Errorf("account %s, credential %s: allowed is %t, want %t", c.account.Name, c.credential, got, c.allowed)
		}
	}
	if _, err := parsePolicy("f", "credential.db = ann\ncredential.db = bob\n"); err == nil {
		t.Error("a credential may be listed twice")
	}
}
