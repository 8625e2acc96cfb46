#pragma once
#include "simt/small_floats.h"
