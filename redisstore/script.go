package redisstore

import (
	_ "embed"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/oncemore-go/oncemore/server"
)

var (
	//go:embed scripts/common.lua
	commonText string
	//go:embed scripts/claim.lua
	claimText string
	//go:embed scripts/lookup.lua
	lookupText string
	//go:embed scripts/takeover.lua
	takeoverText string
	//go:embed scripts/renew.lua
	renewText string
	//go:embed scripts/complete.lua
	completeText string
	//go:embed scripts/release.lua
	releaseText string
	//go:embed scripts/settle.lua
	settleText string
	//go:embed scripts/forget.lua
	forgetText string
)

// script is one call of the store. It is sent by its hash, and by its text to a
// server that does not know the hash yet.
type script struct {
	call string
	*redis.Script
}

var (
	claimScript    = newScript("claim", claimText)
	lookupScript   = newScript("lookup", lookupText)
	takeoverScript = newScript("takeover", takeoverText)
	renewScript    = newScript("renew", renewText)
	completeScript = newScript("complete", completeText)
	releaseScript  = newScript("release", releaseText)
	settleScript   = newScript("settle", settleText)
	forgetScript   = newScript("forget", forgetText)
)

func newScript(call, text string) script {
	states := fmt.Sprintf("local RUNNING, DONE = '%d', '%d'\n", server.Running, server.Done)
	return script{call: call, Script: redis.NewScript(states + commonText + text)}
}
