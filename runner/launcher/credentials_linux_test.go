package launcher

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/queuectl/queuectl/internal/accounts"
	"github.com/queuectl/queuectl/internal/skip"
)

// A runner that runs as root reads a credential only for accounts that the policy lists for it, and never
// reads a file outside the credentials directory. A runner that has switched to an account uses only the
// credentials that it read before the switch.
func TestRunnerReadsOnlyListedCredentials(t *testing.T) {
	skip.UnlessRoot(t, "needs root, because the policy file must belong to root; "+
		".ci/run runs it as root, and TestPolicyAllowsCredentialPerAccount tests which jobs get a credential")
	dir := t.TempDir()
	policy := filepath.Join(dir, "runner.conf")
	credentials := filepath.Join(dir, "credentials")
	for path, content := range map[string]string{
		policy: "accounts = *\n" +
			"credential.db = daemon\ncredential.gone = daemon\ncredential.link = daemon\n",
		filepath.Join(credentials, "db"): "p4ss\n", filepath.Join(dir, "other"): "x",
	} {
		os.Mkdir(filepath.Dir(path), 0o700)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(filepath.Join(dir, "other"), filepath.Join(credentials, "link")); err != nil {
		t.Fatal(err)
	}
	t.Setenv(credentialsDirEnvVar, credentials)
	directory := &accounts.Resolver{AlwaysQueryRemote: true}
	roots := &AccountAuthorizer{PolicyFile: policy, ServiceUID: 5, AccountResolver: directory}
	daemon, rules, err := roots.authorizeAccount(directory.UserByName("daemon"))
	if err != nil {
		t.Fatal(err)
	}
	values := readAllowedCredentials(rules, &daemon, directory)
	if len(values) != 1 || string(values["db"]) != "p4ss\n" {
		t.Errorf("an account is given %v", values)
	}
	for _, c := range []struct {
		a             *AccountAuthorizer
		values        map[string][]byte
		uid           int64
		name, wantErr string
	}{
		{roots, nil, 1, "db", ""},
		{nil, values, -1, "db", ""},
		{roots, nil, 9, "db", "not allowed for jobs of news"},
		{roots, nil, 1, "nothing", "not allowed for jobs of"},
		{roots, nil, 1, "gone", "no such file"},
		{roots, nil, 1, "link", "too many levels"},
		{roots, nil, 1, "../other", "not allowed for jobs of"},
		{nil, values, -1, "gone", "not allowed for jobs of this account"},
		{nil, nil, -1, "db", "not allowed for jobs of this account"},
	} {
		value, err := ReadAllowedCredential(c.a, c.values, c.name, c.uid)
		if c.wantErr == "" && (err != nil || string(value) != "p4ss\n") ||
			c.wantErr != "" && (err == nil || !strings.Contains(err.Error(), c.wantErr)) {
			t.Errorf("%s for uid %d: %q, %v; want %q", c.name, c.uid, value, err, c.wantErr)
		}
	}
}
