# Kills the service QUEUECTL_KILLS times (200 by default): no job is lost or runs twice. The
# suite has a short form of this test. Sourced by packaging/test/wine.
programs
GOOS=windows CGO_ENABLED=0 go test -c -o "$work/kills.exe" ./test/durability
cd "$project/test/durability"
QUEUECTL_KILLS=${QUEUECTL_KILLS:-200} timeout 3600 wine "$work/kills.exe" -test.v -test.run='^TestServiceKilled$' -test.timeout=55m </dev/null
