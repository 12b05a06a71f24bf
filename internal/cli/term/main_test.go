package term

import (
	"os"
	"testing"
)

func TestMain(m *testing.M) {
	os.Setenv("LC_ALL", "C.UTF-8") // the tests expect Unicode
	os.Exit(m.Run())
}
