package cli

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/queuectl/queuectl/internal/testrig"
)

// The client starts quickly: few of its packages have initializers, and it contains none of the service's
// packages. All initializers together took 0.4 ms of CPU time when measured, mostly in the Go runtime.
func TestClientHasFewInitializers(t *testing.T) {
	const maxInits, early = 46, 8
	out, code := runProgram(t, []string{"GODEBUG=inittrace=1"}, testrig.BuiltProgram(t, ""), "version")
	inits := regexp.MustCompile(`(?m)^init (\S+) @`).FindAllStringSubmatch(out, -1)
	if code != 0 || len(inits) == 0 {
		t.Fatalf("exit code %d\n%s", code, out)
	}
	if len(inits) > maxInits {
		t.Errorf("%d packages have an initializer, want at most %d\n%s", len(inits), maxInits, out)
	}
	grows := slices.IndexFunc(inits,
		func(name []string) bool { return strings.HasSuffix(name[1], "/internal/tune/stack") })
	if grows < 0 || grows > early {
		t.Errorf("the package that grows the stack is initialized as number %d, want at most %d", grows, early)
	}
	for _, name := range inits {
		if regexp.MustCompile(
			`modernc|sqlite|toml|database/sql|queuectl/(service|store|worker|upkeep)`).MatchString(name[1]) {
			t.Errorf("the client initializes %s", name[1])
		}
	}
}
