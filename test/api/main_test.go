//go:build linux || windows

package api

import (
	"testing"

	"github.com/queuectl/queuectl/internal/testrig"
)

func TestMain(m *testing.M) { testrig.RunPackageTests(m, nil) }
