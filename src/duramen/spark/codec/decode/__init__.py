"""Record batches to Arrow columns with numpy: headers, CRCs, inflating, records, columns, each step for many batches.

`Decoder` is all that others need: stored bytes in, Arrow record batches out.
"""

from duramen.spark.codec.decode.decoder import Decoder, RecordFilter

__all__ = ["Decoder", "RecordFilter"]
