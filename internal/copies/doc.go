// Package copies makes copies of a program that go on running while the program itself is
// replaced, which Windows does not let anybody do to one that runs.
package copies
