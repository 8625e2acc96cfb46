import sys; sys.path.insert(0, "lib")
import numpy as np, time
from rooflab import ops
from rooflab.ops import int4
from rooflab.numerics import quant
rng=np.random.default_rng(0)
for n,k,b,m in ((448,1024,1,{"BLOCKS":3,"STAGES":2,"WARPS":4}),(70,256,1,{"BLOCKS":2,"STAGES":3,"WARPS":4}),(300,384,5,{"TOKENS":8,"BLOCKS":7,"STAGES":2,"WARPS":5}),(16,128,8,{"TOKENS":8,"BLOCKS":4,"WARPS":2,"STAGES":2}),(200,1152,2,{"TOKENS":2,"BLOCKS":5,"WARPS":8,"STAGES":4})):
    rows=rng.standard_normal((n,k)).astype(np.float32)
    codes,scales=quant.quantise_int4(rows)
    with ops.on("cpu"):
        t=int4.repack(codes,scales)
        x=rng.standard_normal((b,k)).astype(np.float16)
        y=np.full((b,n),np.nan,np.float16)
        t0=time.time(); int4.matmul(x,t,out=y,rung="14_persistent",**m)
        ref=np.full((b,n),np.nan,np.float16); int4.matmul(x,t,out=ref,rung="8_folded_offset",TOKENS=max(2,b) if b>1 else 1)
    print(n,k,b,m,np.abs(y.astype(float)-ref.astype(float)).max(), np.abs(ref).max(), time.time()-t0)
