"""Record batches to Arrow columns with numpy: headers, CRCs, inflating, records, columns, each step for many batches.

`Decoder` is all that others need: stored bytes in, Arrow record batches out; `decode_together` does it for many small
ranges at once.
"""

from duramen.spark.codec.decode.decoder import Decoder, Range, RecordFilter, decode_together

__all__ = ["Decoder", "Range", "RecordFilter", "decode_together"]
