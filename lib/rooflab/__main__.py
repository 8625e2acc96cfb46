from rooflab.cli import main

raise SystemExit(main())
