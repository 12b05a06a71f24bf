package windows

import (
	"testing"

	"github.com/queuectl/queuectl/internal/testrig"
)

func TestMain(m *testing.M) { testrig.Main(m, map[string]func() int{explorerRole: runAsExplorer}) }
