//go:build linux || windows

package cli

import (
	"testing"

	"github.com/queuectl/queuectl/internal/testrig"
)

func TestMain(m *testing.M) { testrig.RunPackageTests(m, helperProcessMains) }
