// The decoder-only transformer that every family of this folder is: runs what a DecoderSpec says.
#pragma once

#include <memory>

#include "base/result.h"
#include "model/decoder_spec.h"
#include "model/model.h"
#include "model/registry.h"
#include "weights/checkpoint.h"

namespace tandem::model {

// Packs the checkpoint's weights as `spec` names them. The checkpoint stays open: the embedding is
// read in place.
Result<std::unique_ptr<Model>> load_decoder(weights::Checkpoint checkpoint, DecoderSpec spec,
                                            const ModelOptions& options);

}  // namespace tandem::model
