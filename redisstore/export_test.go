package redisstore

// Fits is asked without half a gigabyte at hand.
var Fits = fits
