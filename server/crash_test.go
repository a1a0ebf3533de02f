package server_test

const crashEnv = "ONCEMORE_TEST_CRASH"

func crashingChild() {}
