package windows

import (
	"testing"

	"github.com/queuectl/queuectl/internal/testrig"
)

func TestMain(m *testing.M) {
	testrig.RunPackageTests(m, map[string]func() int{explorerModeEnvVar: runAsExplorer})
}
