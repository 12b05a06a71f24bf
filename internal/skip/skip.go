// Package skip skips tests that a machine cannot run, or that take too long for a short run. All tests in the
// repository use this package to skip. Each call gives a reason of two parts, separated by a semicolon: why the test is
// skipped, and which other test checks the same promise. TestSkippedTestsGiveConstantReasons in the root of the
// repository checks this form. In the output of go test -v, each reason follows the word "skipped:", so that a script
// can count the skips by reason.
package skip

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// requirementsVariable is the environment variable that lists the requirements that this machine must
// fulfil, separated by commas. If such a requirement is missing, a test fails instead of being skipped.
const requirementsVariable = "QUEUECTL_REQUIRE"

// MissingRequirement ends a test because this machine lacks a requirement, such as "root" or the name of a
// program. It skips the test or, if QUEUECTL_REQUIRE lists the requirement, fails it.
func MissingRequirement(t testing.TB, requirement, reason string) {
	t.Helper()
	if slices.Contains(strings.Split(os.Getenv(requirementsVariable), ","), requirement) {
		t.Fatalf("%s lists %s, but the test cannot run: it %s", requirementsVariable, requirement, reason)
	}
	t.Skip("skipped: " + reason)
}

// UnlessRoot calls MissingRequirement, which ends the test, if the test does not run as root.
func UnlessRoot(t testing.TB, reason string) {
	t.Helper()
	if os.Geteuid() != 0 {
		MissingRequirement(t, "root", reason)
	}
}

// UnlessProgram returns the path of a program. If the program is not in PATH, it calls MissingRequirement, which ends
// the test.
func UnlessProgram(t testing.TB, name, reason string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		MissingRequirement(t, name, reason)
	}
	return path
}

// IfShort skips a test in short mode (go test -short). make test uses short mode. make test-long runs
// all tests.
func IfShort(t testing.TB, reason string) {
	t.Helper()
	if testing.Short() {
		t.Skip("skipped: " + reason)
	}
}
